// Worker thread that encodes pictures, one call of the library at a time. Started by encoder.ts.
import { setPriority } from 'node:os'
import { parentPort, workerData } from 'node:worker_threads'
import { loadProjector, type Mtmd, openMtmd, type PreparedPicture, type Projector } from '../llama/mtmd.ts'
import type { EncoderAnswer, EncoderRequest, EncoderResult } from './encoder-messages.ts'

// A third of the normal CPU share beside a stream: an encoding takes seconds, a step of a stream milliseconds.
const niceness = 5
const probeSize = { width: 32, height: 32 }

const port = parentPort!
// On Linux the priority applies to this thread only, and to the compute threads that it starts.
if (process.platform === 'linux') setPriority(niceness)
let mtmd: Mtmd | null = null
const projectors = new Map<number, Projector>()
const pictures = new Map<number, PreparedPicture>()

function answer(request: EncoderRequest): EncoderResult[keyof EncoderResult] {
  if (request.kind === 'load') {
    mtmd ??= openMtmd(workerData.dir)
    const projector = loadProjector(mtmd, request.options)
    projectors.set(request.projector, projector)
    return { is_non_causal: projector.is_non_causal, probe: projector.measure(probeSize) }
  }
  if (request.kind === 'unload') {
    projectors.get(request.projector)?.free()
    projectors.delete(request.projector)
    return null
  }
  if (request.kind === 'measure') return projectors.get(request.projector)!.measure(request.size)
  if (request.kind === 'prepare') {
    const prepared = projectors.get(request.projector)!.prepare(request.pixels)
    pictures.set(request.picture, prepared)
    return prepared.parts
  }
  if (request.kind === 'encode') return pictures.get(request.picture)!.encode(request.part)
  pictures.get(request.picture)?.free()
  pictures.delete(request.picture)
  return null
}

port.on('message', (request: EncoderRequest) => {
  try {
    const result = answer(request)
    const transferred = result instanceof Float32Array ? [result.buffer as ArrayBuffer] : []
    port.postMessage({ result } satisfies EncoderAnswer, transferred)
  } catch (error) {
    port.postMessage({ error: (error as Error).message } satisfies EncoderAnswer)
  }
})
