import"./chunk-B73JR65V.js";import"./chunk-D3GTOSZZ.js";import"./chunk-VKWXYK4D.js";
