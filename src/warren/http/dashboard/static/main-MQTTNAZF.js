import"./chunk-B73JR65V.js";import"./chunk-C3MTVAO3.js";import"./chunk-VKWXYK4D.js";
