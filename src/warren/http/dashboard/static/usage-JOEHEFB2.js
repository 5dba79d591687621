import{a,b}from"./chunk-ZJEIRPRH.js";import"./chunk-Q5FOX7ZF.js";import"./chunk-AUBBTLPD.js";export{b as Quotas,a as UsagePage};
