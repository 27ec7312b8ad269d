// Datasets: upload, preparation, validation and tokens. What the rest of the service may import.
export type { FileEntry } from './as-files.ts'
export { type CanonicalRow, itemOfRow, promptOf, shownRow } from './canonical.ts'
export { requirePictureReader } from './refusals.ts'
export { isPicture, withoutPictures } from './row-pictures.ts'
export type { Datasets } from './service.ts'
export { rowsKey } from './store.ts'
export type { Received } from './uploads.ts'
