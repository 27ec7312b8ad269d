// Validates the options of an export request and fills in the defaults.

import { ApiError } from '../../../contract/errors.ts'
import { type CreateExport, onnxPrecisions, quantizations, unquantized } from '../../../contract/exports.ts'
import type { ExportSource } from '../models/index.ts'

export interface ExportOptions {
  format: CreateExport['format']
  quantization: string | null
  merge: boolean
  archive: 'tar' | 'zip' | null
}

const invalid = (field: string, message: string) =>
  new ApiError('invalid_request', `'${field}' ${message}`, { details: { field } })
/** The GGUF types that the converter can write for an adapter. */
const adapterTypes: readonly string[] = [...unquantized, 'Q8_0']
const folderTypes: readonly string[] = ['bf16', 'fp16', 'fp32']
const fileTypes: readonly string[] = [...unquantized, ...quantizations]

/** Throws invalid_request if the model cannot be exported in this form. */
export function resolveOptions(request: CreateExport, model: Pick<ExportSource, 'kind' | 'base'>): ExportOptions {
  const { format, quantization, merge, archive } = request
  if (format === 'onnx' && model.base.projector)
    throw invalid('format', 'cannot be onnx for a model that reads pictures: export it as huggingface or gguf.')
  if (!merge && format === 'onnx')
    throw invalid('merge', 'cannot be false for onnx: export an adapter alone as huggingface or gguf.')
  if (!merge && model.kind === 'model')
    throw invalid('merge', 'cannot be false for this model: it has whole weights, and no adapter to export alone.')
  if (format === 'gguf') {
    if (archive) throw invalid('archive', 'is for huggingface and onnx; a GGUF is one file.')
    return { format, merge, archive: null, quantization: fileType(quantization, merge) }
  }
  const allowed = format === 'onnx' ? (onnxPrecisions as readonly string[]) : folderTypes
  const type = quantization?.toLowerCase() ?? (format === 'onnx' ? 'fp32' : null)
  if (quantization && !merge)
    throw invalid(
      'quantization',
      'cannot be chosen for an adapter alone as huggingface: it is exported as it was trained.',
    )
  if (type && !allowed.includes(type))
    throw invalid('quantization', `must be one of ${allowed.join(', ')} for ${format}.`)
  return { format, merge, archive: archive ?? 'tar', quantization: type }
}

function fileType(requested: string | undefined, merge: boolean): string {
  const precision = (requested ?? (merge ? 'Q8_0' : 'F16')).toUpperCase()
  const allowed = merge ? fileTypes : adapterTypes
  if (!allowed.includes(precision))
    throw invalid('quantization', `must be one of ${allowed.join(', ')}${merge ? '' : ' for an adapter alone'}.`)
  return precision
}

/** Free disk space that an export needs, in bytes, including the intermediate files. */
export function bytesNeeded(
  { format, merge, quantization }: ExportOptions,
  { base, kind, size_bytes }: Pick<ExportSource, 'base' | 'kind' | 'size_bytes'>,
): number {
  if (!merge && kind === 'adapter') return 4 * size_bytes + 10e6
  // Peak bytes per weight: merging in full precision, plus the later forms. Quantizing starts from full precision,
  // after the merged files were removed.
  const bytes = { huggingface: 8, gguf: quantization === 'F16' || quantization === 'BF16' ? 6 : 8, onnx: 12 }[format]
  return bytes * base.parameters
}
