// vega-interpreter imports these by the name of a package; the import map in index.html leads here.
export const { ascending, isString, DisallowedObjectProperties } = globalThis.vega;
