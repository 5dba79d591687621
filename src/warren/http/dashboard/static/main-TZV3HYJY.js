import"./chunk-B73JR65V.js";import"./chunk-Z4WRPEQF.js";import"./chunk-VKWXYK4D.js";
