/**
 * The folders of source that the engine runs from, wherever it is taken: into bundles, images, machines of a cluster.
 */
export const engineFolders = ['contract', 'lib', 'pictures', 'telemetry', 'engine'] as const

/** Their files, as a pattern from the root of the checkout. */
export const engineSources = `{${engineFolders.join()}}/**/*.{ts,mjs}`
