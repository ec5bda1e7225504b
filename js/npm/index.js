// For browsers and bundlers: the WebAssembly file is fetched from beside this one.
import init from "./pipeplan.js";

await init();

export * from "./pipeplan.js";
