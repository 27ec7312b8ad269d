// Checks that an imported adapter fits a base: its configuration, tensor names and shapes.
import { z } from 'zod'
import { ApiError } from '../../../../contract/errors.ts'
import type { Unpacked } from './main.ts'

export interface AdapterShape {
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

/** Throws adapter_invalid unless this is a LoRA adapter that can be served and continued on weights of these shapes. */
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
  if (!Number.isInteger(lora_alpha))
    throw invalid(`adapter_config.json: lora_alpha is ${lora_alpha}; it must be a whole number here.`)
  for (const name of [
    'use_dora',
    'use_rslora',
    'use_qalora',
    'lora_bias',
    'alora_invocation_tokens',
    'modules_to_save',
    'trainable_token_indices',
  ])
    if (config[name])
      throw invalid(
        `adapter_config.json: '${name}' is not supported; only plain LoRA adapters are taken` +
          `${name === 'modules_to_save' ? ', without modules that were trained whole, such as a projector' : ''}.`,
      )
  for (const name of ['rank_pattern', 'alpha_pattern'])
    if (config[name] && Object.keys(config[name] as object).length > 0)
      throw invalid(`adapter_config.json: '${name}' is not supported; all layers must share one rank and alpha.`)
  const modules = new Set<string>()
  for (const [name, { shape }] of Object.entries(tensors)) {
    const [, layer, part] = /^base_model\.model\.(.+)\.lora_(A|B)(?:\.default)?\.weight$/.exec(name) ?? []
    if (!layer) throw invalid(`The tensor ${name.slice(0, 200)} is not one of a plain LoRA adapter.`)
    const module = layer.split('.').at(-1)!
    const base = shapes.get(`${layer}.weight`)
    if (base?.length !== 2 || !linear_modules.includes(module))
      throw invalid(
        `${base_model_id} has no linear layer ${layer}. Its layers have ${linear_modules.join(', ')}. ` +
          'Is this adapter of another base? Name it as base_model_id.',
      )
    const [outputs, inputs] = base
    const expected = part === 'A' ? [r, inputs] : [outputs, r]
    if (shape.join() !== expected.join())
      throw invalid(
        `The tensor ${name} is [${shape.join(', ')}]; ` +
          `on ${base_model_id} with rank ${r} it must be [${expected.join(', ')}].`,
      )
    if (!tensors[name.replace(/lora_[AB]/, `lora_${part === 'A' ? 'B' : 'A'}`)])
      throw invalid(`The tensor ${name} has no counterpart.`)
    modules.add(module)
  }
  return { r, alpha: lora_alpha, target_modules: [...modules].sort() }
}
