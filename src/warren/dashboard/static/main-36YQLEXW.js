import"./chunk-JJM7IUQO.js";import"./chunk-MAL33XZP.js";import"./chunk-AUBBTLPD.js";
