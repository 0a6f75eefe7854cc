"use strict";
// The values of pictures and tables are packed: as text they are most of a page. What follows runs with them.
const unpack = (text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
};
