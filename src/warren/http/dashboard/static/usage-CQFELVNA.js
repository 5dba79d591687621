import{a,b}from"./chunk-PCK4J6ST.js";import"./chunk-7DOIIXX2.js";import"./chunk-5ZZRJWTV.js";import"./chunk-VKWXYK4D.js";export{b as Quotas,a as UsagePage};
