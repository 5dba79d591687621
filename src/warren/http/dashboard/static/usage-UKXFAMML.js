import{a,b}from"./chunk-QS76M7LA.js";import"./chunk-O7XWB6RC.js";import"./chunk-RR7QG5YS.js";export{b as Quotas,a as UsagePage};
