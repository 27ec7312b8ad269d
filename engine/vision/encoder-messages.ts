// Messages between the engine and the thread that encodes pictures.
import type { PicturePart, PictureSize, ProjectorOptions, Rgb } from '../llama/mtmd.ts'

interface ProjectorFacts {
  is_non_causal: boolean
  probe: PicturePart[]
}

export type EncoderRequest =
  | { kind: 'load'; projector: number; options: ProjectorOptions }
  | { kind: 'unload'; projector: number }
  | { kind: 'measure'; projector: number; size: PictureSize }
  | { kind: 'prepare'; projector: number; picture: number; pixels: Rgb }
  | { kind: 'encode'; picture: number; part: number }
  | { kind: 'forget'; picture: number }

export interface EncoderResult {
  load: ProjectorFacts
  unload: null
  measure: PicturePart[]
  prepare: PicturePart[]
  encode: Float32Array
  forget: null
}

export type EncoderAnswer = { result: EncoderResult[keyof EncoderResult] } | { error: string }
