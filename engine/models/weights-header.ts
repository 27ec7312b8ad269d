// The header x-weights: which weights answered, from what is in memory.
import { headerText } from '../../lib/header-text.ts'
import type { ServedModel } from './models.ts'

export const weightsHeader = 'x-weights'

/**
 * `base=ID sha256:HASH`, then `; eight_bits=1` if the file is the engine's own 8-bit copy, `; server=vllm` if vLLM has
 * loaded the files, which are those of the checkpoint then, `; projector=sha256:HASH` if
 * it reads pictures, `; adapter=ID sha256:HASH` of an adapter, and `; merged=1 sha256:HASH` if base and adapter are one
 * file. Hashes: see `LoadedFile`.
 */
export function weightsOf({ name, base_name, file, model, remote, projector, adapter }: ServedModel): string {
  const { merged_from } = model
  const sight = projector ? `; projector=sha256:${projector.sha256.slice(0, 16)}` : ''
  if (merged_from) {
    const { base, base_sha256, adapter, adapter_sha256 } = merged_from
    return (
      `base=${headerText(base)} sha256:${headerText(base_sha256.slice(0, 16))}; ` +
      `adapter=${headerText(adapter)} sha256:${headerText(adapter_sha256.slice(0, 16))}; merged=1 ${file.hash}${sight}`
    )
  }
  const form = remote ? '; server=vllm' : model.is_eight_bit_copy ? '; eight_bits=1' : ''
  const base = `base=${headerText(base_name ?? name)} ${file.hash}${form}${sight}`
  return adapter ? `${base}; adapter=${headerText(name)} ${adapter.file.hash}` : base
}
