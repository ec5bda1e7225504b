export * from "./pipeplan.js";
