import"./chunk-B73JR65V.js";import"./chunk-CYRMUGH7.js";import"./chunk-VKWXYK4D.js";
