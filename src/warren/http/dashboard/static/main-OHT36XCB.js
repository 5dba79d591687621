import"./chunk-B73JR65V.js";import"./chunk-5ZZRJWTV.js";import"./chunk-VKWXYK4D.js";
