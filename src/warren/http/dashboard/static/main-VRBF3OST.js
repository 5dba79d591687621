import"./chunk-B73JR65V.js";import"./chunk-5SGG5JF3.js";import"./chunk-VKWXYK4D.js";
