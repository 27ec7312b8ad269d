// What an export may be asked for, and what it is where nothing was said.

import { ApiError } from '../../contract/errors.ts'
import { type CreateExport, onnxPrecisions, quantizations, unquantized } from '../../contract/exports.ts'
import type { TakenModel } from '../fine-tuning/models/export-source.ts'

export interface Choice {
  format: CreateExport['format']
  quantization: string | null
  merge: boolean
  archive: 'tar' | 'zip' | null
}

const invalid = (field: string, message: string) =>
  new ApiError('invalid_request', `'${field}' ${message}`, { details: { field } })
/** An adapter is two small matrices a layer: the converter writes it in these. */
const adapterTypes: readonly string[] = [...unquantized, 'Q8_0']
const folderTypes: readonly string[] = ['bf16', 'fp16', 'fp32']
const fileTypes: readonly string[] = [...unquantized, ...quantizations]

/** Throws invalid_request where the model cannot be taken in this form. */
export function choose(asked: CreateExport, model: Pick<TakenModel, 'kind'>): Choice {
  const { format, quantization, merge, archive } = asked
  if (!merge && format === 'onnx')
    throw invalid('merge', 'cannot be false for onnx: an adapter alone is taken as huggingface or gguf.')
  if (!merge && model.kind === 'model')
    throw invalid('merge', 'cannot be false for this model: it has whole weights, and no adapter to take alone.')
  if (format === 'gguf') {
    if (archive) throw invalid('archive', 'is for huggingface and onnx; a GGUF is one file.')
    return { format, merge, archive: null, quantization: fileType(quantization, merge) }
  }
  const allowed = format === 'onnx' ? (onnxPrecisions as readonly string[]) : folderTypes
  const given = quantization?.toLowerCase() ?? (format === 'onnx' ? 'fp32' : null)
  if (quantization && !merge)
    throw invalid(
      'quantization',
      'cannot be chosen for an adapter alone as huggingface: it is taken as it was trained.',
    )
  if (given && !allowed.includes(given))
    throw invalid('quantization', `must be one of ${allowed.join(', ')} for ${format}.`)
  return { format, merge, archive: archive ?? 'tar', quantization: given }
}

function fileType(asked: string | undefined, merge: boolean): string {
  const given = (asked ?? (merge ? 'Q8_0' : 'F16')).toUpperCase()
  const allowed = merge ? fileTypes : adapterTypes
  if (!allowed.includes(given))
    throw invalid('quantization', `must be one of ${allowed.join(', ')}${merge ? '' : ' for an adapter alone'}.`)
  return given
}

/** Bytes that making it may take beside what is kept: what is merged, what is converted, what is packed. */
export function bytesNeeded(
  { format, merge, quantization }: Choice,
  { base, kind, size_bytes }: Pick<TakenModel, 'base' | 'kind' | 'size_bytes'>,
): number {
  if (!merge && kind === 'adapter') return 4 * size_bytes + 10e6
  // Of each weight, at the most: in full precision while it is merged, and in every form that it passes through. What
  // is quantized is so from full precision, while what was merged is gone.
  const bytes = { huggingface: 8, gguf: quantization === 'F16' || quantization === 'BF16' ? 6 : 8, onnx: 12 }[format]
  return bytes * base.parameters
}
