import"./chunk-JJM7IUQO.js";import"./chunk-O7XWB6RC.js";import"./chunk-RR7QG5YS.js";
