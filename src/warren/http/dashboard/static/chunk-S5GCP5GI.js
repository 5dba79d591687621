function e(r){return Uint8Array.from(atob(r),t=>t.charCodeAt(0))}export{e as a};
