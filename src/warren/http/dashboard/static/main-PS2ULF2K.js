import"./chunk-JJM7IUQO.js";import"./chunk-Q5FOX7ZF.js";import"./chunk-AUBBTLPD.js";
