// What a decoder and its child process tell each other.
import type { PictureFormat } from './formats.ts'

/** What the child does with a picture, and what comes of it. */
export interface DecodeResults {
  measure: PictureSize
  check: PictureSize
  decode: DecodedPicture
  normalize: NormalizedPicture
}

export interface DecodeRequest {
  id: number
  work: keyof DecodeResults
  file: Uint8Array
}

/** In pixels, as the picture is looked at: an orientation that its file names is applied. */
export interface PictureSize {
  width: number
  height: number
}

/** `width` and `height` in pixels. `rgb`: 3 bytes a pixel, rows from the top. */
export interface DecodedPicture {
  width: number
  height: number
  rgb: Uint8Array
}

/** A file that shows the same without metadata, upright, in sRGB. `same`: it is the file that was given. */
export interface NormalizedPicture {
  width: number
  height: number
  format: PictureFormat
  file: Uint8Array
  same: boolean
}

export type DecodeResponse = { id: number } & ({ result: DecodeResults[keyof DecodeResults] } | { refused: string })
