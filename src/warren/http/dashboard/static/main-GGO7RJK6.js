import"./chunk-B73JR65V.js";import"./chunk-GX5FOESH.js";import"./chunk-VKWXYK4D.js";
