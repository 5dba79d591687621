import{a,b}from"./chunk-LKQUVC6E.js";import"./chunk-7DOIIXX2.js";import"./chunk-CYRMUGH7.js";import"./chunk-VKWXYK4D.js";export{b as Quotas,a as UsagePage};
