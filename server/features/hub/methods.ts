// What a base allows on this machine: the fine-tuning methods, by its parameter count, and whether it is shown
// pictures.

import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import type { Method } from '../../../contract/common.ts'
import type { Model } from '../../../contract/hub.ts'
import { readNvidiaGpus } from '../../../lib/nvidia-gpus.ts'
import { root } from '../../../lib/root.ts'
import { usableCores } from '../../../lib/usable-cores.ts'
import { usableMemory } from '../../../lib/usable-memory.ts'
import { mayWork, type Tried } from './families.ts'
import type { Machine } from './memory.ts'

/**
 * Minimum bytes of memory per weight in training: frozen in bf16, frozen in 4 bits, or in float32 with its gradient and
 * two moments. A run needs more (trainer/run/memory.py predicts it): a method that is left out can never fit, and a
 * listed one may need a smaller batch.
 */
const min_bytes_per_weight = { lora: 2, qlora: 0.55, full: 16 } as const satisfies Record<Method, number>

/** The methods that a text model of this size allows in `memory_bytes` of each device; several share it by lora. */
export const methodsFor = (parameters: number, memory_bytes: number, devices = 1): Method[] =>
  (['lora', 'qlora', 'full'] as const).filter(
    (method) => parameters * min_bytes_per_weight[method] <= memory_bytes * (method === 'lora' ? devices : 1),
  )

/** Vision-language architectures, as transformers names them, whose pictures are tested against transformers. */
const testedFamilies = ['idefics3', 'smolvlm', 'qwen2_5_vl', 'qwen3_vl', 'gemma3']
/** Those that the trainer shows pictures to: trainer/data/sight.py. */
const trainableFamilies = [...testedFamilies, 'qwen2_vl']

/** Whether a vision-language model of this architecture can be trained on pictures; others are on text alone. */
const trainsOnPictures = (family: string | undefined) => family !== undefined && trainableFamilies.includes(family)

/** Those whose projector it can train: trainer/model/projector.py. */
const projectorFamilies = ['idefics3', 'smolvlm', 'qwen2_vl', 'qwen2_5_vl']

/** Why the projector of a vision-language model cannot be trained here, as a part of a sentence; null if it can. */
export const projectorProblem = (id: string, family: string | undefined) =>
  family !== undefined && projectorFamilies.includes(family)
    ? null
    : `${id} is of the family ${family ?? 'unknown'}, and that of ${projectorFamilies.join(', ')} alone is`

/** Whether the engine of this installation has its library for pictures. */
export const servesPictures = () => existsSync(path.join(root, '.local/llama/lib/libmtmd.so'))

/**
 * How a vision-language model of this architecture is served by the engine of this installation. `tested`: what was
 * tried of its family.
 */
export function sightOf(family: string | undefined, tested?: Tried): Model['pictures'] {
  const served = servesPictures()
  const notes: string[] = []
  if (!served)
    notes.push(
      'The engine of this installation has no library for pictures, so it serves the model for text only: run ' +
        '`npm run setup -- --with vision`, which needs g++, and start the service again.',
    )
  const problem = mayWork(tested, 'pictures') ? undefined : tested!.pictures!
  if (problem) notes.push(problem)
  else if (!tested?.pictures && (!family || !testedFamilies.includes(family)))
    notes.push('Pictures are not tested with this family of models: compare answers before you rely on them.')
  const trained = trainsOnPictures(family) && !problem
  if (!trainsOnPictures(family)) notes.push('Models of this family can be trained on rows without pictures only.')
  return { served, trained, notes }
}

/** What trains on this machine: its GPUs if there are any that report their memory, else its cores. */
export async function trainingMachine(readGpus = readNvidiaGpus): Promise<Machine> {
  const sizes = ((await readGpus()) ?? []).map(({ total_bytes }) => total_bytes)
  const cores = usableCores()
  if (sizes.length > 0 && sizes.every((bytes) => bytes !== null))
    return { device: 'gpu', bf16: true, cores, memory_bytes: Math.min(...sizes), devices: sizes.length }
  return { device: 'cpu', bf16: multipliesInBf16(), cores, memory_bytes: usableMemory() }
}

/** Whether the processor has instructions for bfloat16, as trainer/model/load.py asks torch. */
function multipliesInBf16(): boolean {
  try {
    return /^(flags|Features)\s*:.*\b(avx512_bf16|amx_bf16|bf16)\b/m.test(readFileSync('/proc/cpuinfo', 'utf8'))
  } catch {
    return false
  }
}
