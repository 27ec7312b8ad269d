// Checks that an imported adapter fits a base: its configuration, tensor names and shapes.
import { z } from 'zod'
import { ApiError } from '../../../../contract/errors.ts'
import type { Unpacked } from './main.ts'

/** As far as it is plain: the trainer reads what else is in the adapter. */
interface AdapterShape {
  r: number
  alpha: number
  target_modules: string[]
}

const Config = z.looseObject({
  peft_type: z.literal('LORA'),
  r: z.int().min(1).max(1024),
  lora_alpha: z.number().gt(0),
})

const invalid = (message: string, details?: Record<string, unknown>) =>
  new ApiError('adapter_invalid', message, { ...(details && { details }) })

const describeIssues = ({ issues }: z.ZodError) =>
  issues.map(({ path, message }) => `${path.join('.')}: ${message}`).join('; ')

/** Options by which an adapter has tensors besides pairs of factors for linear layers. */
const widening = ['use_dora', 'modules_to_save', 'trainable_token_indices', 'lora_bias', 'target_parameters']

/** What PEFT may save whole beside the factors (trainer/run/foreign_adapter.py compares it with the base). */
const embedding = /^base_model\.model\.(?:.+\.)?(?:embed_tokens|lm_head)(?:\.base_layer)?\.weight$/

const isSet = (value: unknown) =>
  typeof value === 'object' && value !== null ? Object.keys(value).length > 0 : Boolean(value)

/**
 * Throws adapter_invalid unless this is a LoRA adapter whose factors fit linear layers of these shapes. An adapter that
 * says so may have further tensors, and every adapter embeddings and a head.
 */
export function checkAdapter(
  { config, tensors }: Unpacked,
  base_model_id: string,
  shapes: Map<string, number[]>,
  linear_modules: string[],
): AdapterShape {
  const parsed = Config.safeParse(config)
  if (!parsed.success)
    throw invalid(`adapter_config.json is not that of a LoRA adapter: ${describeIssues(parsed.error)}.`)
  const { r, lora_alpha } = parsed.data
  const hasPattern = isSet(config.rank_pattern)
  const hasMore =
    widening.some((name) => isSet(config[name])) ||
    (isSet(config.bias) && config.bias !== 'none') ||
    Object.keys(tensors).some((name) => name.includes('.lora_embedding_'))
  const modules = new Set<string>()
  for (const [name, { shape }] of Object.entries(tensors)) {
    const [, layer, part] = /^base_model\.model\.(.+)\.lora_(A|B)(?:\.default)?\.weight$/.exec(name) ?? []
    if (!layer && ((hasMore && name.startsWith('base_model.model.')) || embedding.test(name))) continue
    if (!layer) throw invalid(`The tensor ${name.slice(0, 200)} is not one of a plain LoRA adapter.`)
    const module = layer.split('.').at(-1)!
    const base = shapes.get(`${layer}.weight`)
    // A head that was adapted is merged; it has no weights of its own where it is tied.
    if (module === 'lm_head') continue
    // Experts and other parameters have names and forms of the model in memory, which the trainer knows.
    if (isSet(config.target_parameters) && (base?.length !== 2 || !linear_modules.includes(module))) continue
    if (base?.length !== 2 || !linear_modules.includes(module))
      throw invalid(
        `${base_model_id} has no linear layer ${layer}. Its layers have ${linear_modules.join(', ')}. ` +
          'Is this adapter of another base? Name it as base_model_id.',
      )
    const [outputs, inputs] = base
    const rank = hasPattern ? shape[part === 'A' ? 0 : 1] : r
    const expected = part === 'A' ? [rank, inputs] : [outputs, rank]
    if (shape.join() !== expected.join())
      throw invalid(
        `The tensor ${name} is [${shape.join(', ')}]; ` +
          `on ${base_model_id} with rank ${rank} it must be [${expected.join(', ')}].`,
      )
    if (!tensors[name.replace(/lora_[AB]/, `lora_${part === 'A' ? 'B' : 'A'}`)])
      throw invalid(`The tensor ${name} has no counterpart.`)
    modules.add(module)
  }
  return { r, alpha: Math.max(1, Math.round(lora_alpha)), target_modules: [...modules].sort() }
}
