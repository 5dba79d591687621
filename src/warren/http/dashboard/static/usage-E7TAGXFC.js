import{a,b}from"./chunk-AGPM7QDN.js";import"./chunk-7DOIIXX2.js";import"./chunk-D3GTOSZZ.js";import"./chunk-VKWXYK4D.js";export{b as Quotas,a as UsagePage};
