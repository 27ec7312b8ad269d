// Datasets: upload, preparation, validation and tokens. What the rest of the service may import.
export type { FileEntry } from './as-files.ts'
export { type CanonicalRow, itemOfRow, promptOf, shownRow } from './canonical.ts'
export { isPicture, withoutPictures } from './row-pictures.ts'
export { type Datasets, type Received, requirePictureReader } from './service.ts'
export { rowsKey } from './store.ts'
