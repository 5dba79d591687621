import{a,b}from"./chunk-N47HZ72C.js";import"./chunk-7DOIIXX2.js";import"./chunk-GX5FOESH.js";import"./chunk-VKWXYK4D.js";export{b as Quotas,a as UsagePage};
