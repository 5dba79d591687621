import{a,b}from"./chunk-JPPWTQ77.js";import"./chunk-7DOIIXX2.js";import"./chunk-5SGG5JF3.js";import"./chunk-VKWXYK4D.js";export{b as Quotas,a as UsagePage};
