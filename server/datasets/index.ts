// Datasets: upload, preparation, validation and tokens. What the rest of the service may import.
export { prepareDataset, queueKind } from './prepare.ts'
export { createDatasets, type Datasets } from './service.ts'
export { createTokens } from './tokens.ts'
