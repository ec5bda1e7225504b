// For Node, which cannot fetch a file: read at once, so that `require` of newer versions works too.
import { readFileSync } from "node:fs";
import { initSync } from "./pipeplan.js";

initSync({ module: readFileSync(new URL("./pipeplan_bg.wasm", import.meta.url)) });

export * from "./pipeplan.js";
