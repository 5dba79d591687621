import{a,b}from"./chunk-YJCO756Q.js";import"./chunk-MAL33XZP.js";import"./chunk-AUBBTLPD.js";export{b as Quotas,a as UsagePage};
