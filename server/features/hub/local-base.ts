// A base in the models folder: its model.json and its checkpoint, as the service reads them.
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { z } from 'zod'
import { type EightBits, eightBitsProblem, readEightBits } from '../../../lib/eight-bits.ts'
import { shapesOf } from '../../platform/storage/safetensors.ts'
import { Sizes } from './memory.ts'

/** The file with which the engine shows pictures to a language model. */
export interface Projector {
  path: string
  /** In hex, as it was when the model was added: a projector of another training has the same shape. */
  sha256: string
}

/** Whether a base generates text, reads pictures too, or makes embeddings, which cannot be trained. */
export type BaseKind = 'text' | 'vision' | 'embedding'

/** A base model whose weights are here. */
export interface LocalBase {
  id: string
  kind: BaseKind
  parameters: number
  context_length: number
  /** The file that the engine serves. */
  gguf: string
  /** Set for a vision model; null for others. */
  projector: Projector | null
  /** Whether it is served as it is in its file, by its own setting or that of all. */
  keep_original: boolean
  /** The form in which it is served instead of the original; null if there is none, or the original is kept. */
  eight_bits: EightBits | null
  /** Why the original answers though its eight-bit form would be faster; null where nothing hinders that form. */
  eight_bits_problem: string | null
  /** The checkpoint folder that the trainer loads; null if it is not here, so that the base can only be served. */
  hf: string | null
  /** Names of the layers that an adapter can change as it is served; null where the base was added without a look. */
  linear_modules: string[] | null
  /** Weights that a rank of an adapter of its experts takes; null where an adapter cannot change experts. */
  expert_weights: number | null
  /** The trainer's counts and widths; null where the base was added by an earlier version. */
  sizes: z.infer<typeof Sizes> | null
  /** Whether a trained adapter ends in its weights, as a whole model: the engine cannot serve adapters of it. */
  merges_adapters: boolean
  /** Why it can be served alone, as a part of a sentence; null where its checkpoint is here, or set-up makes it. */
  untrainable: string | null
  /** Why it reads no pictures though its checkpoint does, as a part of a sentence. */
  blind: string | null
}

const ModelFile = z
  .object({
    id: z.string(),
    kind: z.enum(['text', 'vision', 'embedding']).default('text'),
    parameters: z.number(),
    context_length: z.number(),
    gguf: z.string(),
    projector: z.string().optional(),
    projector_sha256: z
      .string()
      .regex(/^[0-9a-f]{64}$/)
      .optional(),
    hf: z.string().nullable(),
    keep_original_weights: z.boolean().default(false),
    linear_modules: z.array(z.string()).optional(),
    expert_weights: z.int().positive().optional(),
    sizes: Sizes.optional(),
    merges_adapters: z.boolean().default(false),
    untrainable: z.string().optional(),
    blind: z.string().optional(),
  })
  .refine(({ kind, projector, projector_sha256 }) => kind !== 'vision' || (projector && projector_sha256))

/** The base of an id; undefined where the models folder has none. `keep_original`: of all bases. */
export function readLocalBase(modelsDir: string, id: string, keep_original: boolean): LocalBase | undefined {
  // The id becomes a path: reject anything that is not a valid hub id.
  if (!/^[\w.-]+(\/[\w.-]+)?$/.test(id) || id.split('/').some((part) => part.startsWith('.'))) return undefined
  const folder = path.join(modelsDir, id)
  try {
    const file = ModelFile.parse(JSON.parse(readFileSync(path.join(folder, 'model.json'), 'utf8')))
    const gguf = path.join(folder, file.gguf)
    const hf = file.hf === null ? null : path.join(folder, file.hf)
    if (!existsSync(gguf)) return undefined
    const { kind, parameters, context_length, projector, projector_sha256 } = file
    const keep = keep_original || file.keep_original_weights
    const eight_bits_problem = keep ? null : eightBitsProblem(gguf)
    return {
      id,
      kind,
      parameters,
      context_length,
      gguf,
      keep_original: keep,
      eight_bits: keep || eight_bits_problem !== null ? null : readEightBits(gguf),
      eight_bits_problem,
      // Not whether it exists: a model whose projector is lost must say so, instead of reading text only.
      projector: kind === 'vision' ? { path: path.join(folder, projector!), sha256: projector_sha256! } : null,
      hf: hf !== null && existsSync(hf) ? hf : null,
      linear_modules: file.linear_modules ?? null,
      expert_weights: file.expert_weights ?? null,
      sizes: file.sizes ?? null,
      merges_adapters: file.merges_adapters,
      untrainable: file.untrainable ?? null,
      blind: file.blind ?? null,
    }
  } catch {
    // A folder without a readable model.json is no model, and must not break the list.
    return undefined
  }
}

/** The ids of the folders of the models folder, whether or not a model is in them. */
export function localIds(modelsDir: string): string[] {
  if (!existsSync(modelsDir)) return []
  const folders = (dir: string) =>
    readdirSync(dir, { withFileTypes: true })
      // Names of models begin with no dot; folders in which one is being made do.
      .filter((entry) => entry.isDirectory() && !entry.name.startsWith('.'))
      .map((entry) => entry.name)
  return folders(modelsDir).flatMap((owner) => folders(path.join(modelsDir, owner)).map((name) => `${owner}/${name}`))
}

/** The configuration of a checkpoint; empty where it cannot be read. */
export function readConfig(hf: string): Record<string, unknown> {
  try {
    return JSON.parse(readFileSync(path.join(hf, 'config.json'), 'utf8'))
  } catch {
    return {}
  }
}

/** The name of a checkpoint's architecture in transformers. */
export function familyOf(hf: string): string | undefined {
  const { model_type } = readConfig(hf)
  return typeof model_type === 'string' ? model_type : undefined
}

/** Parts of vision-language models that the trainer leaves as they are (trainer/model/vision.py). */
const seeingPart = /(^|\.)(visual|vision_model|connector)\./

/** The module names of all two-dimensional weights inside the layers of the language model. */
export function linearModules(folder: string): string[] {
  const names = new Set<string>()
  for (const [key, shape] of shapesOf(folder)) {
    const inLayer = /\.layers\.\d+\.(.*)/s.exec(key)?.[1]
    const name = inLayer && /(?<!\w)(\w+)\.weight$/.exec(inLayer)?.[1]
    if (name && shape.length === 2 && !seeingPart.test(key)) names.add(name)
  }
  return [...names].sort()
}
