import{a,b}from"./chunk-2DT5YDBW.js";import"./chunk-7DOIIXX2.js";import"./chunk-Z4WRPEQF.js";import"./chunk-VKWXYK4D.js";export{b as Quotas,a as UsagePage};
