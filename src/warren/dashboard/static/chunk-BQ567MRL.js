import{k as e}from"./chunk-ZMIJ5CR7.js";function o(r){e(()=>{document.title=r?`${r} \xB7 Warren`:"Warren"},[r])}export{o as a};
