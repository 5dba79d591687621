import{a,b}from"./chunk-KYTMDSIC.js";import"./chunk-7DOIIXX2.js";import"./chunk-C3MTVAO3.js";import"./chunk-VKWXYK4D.js";export{b as Quotas,a as UsagePage};
