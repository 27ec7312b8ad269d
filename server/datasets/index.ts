// Datasets: upload, preparation, validation and tokens. What the rest of the service may import.
export type { Datasets } from './service.ts'
