// Command line: `node engine/score.ts MODEL.gguf LIBRARY_FOLDER ROWS.json [--adapter FILE.gguf] [--projector
// FILE.gguf]`: prints the log-probabilities of rows of tokens under a model, and under it with an adapter, as JSON. It
// reads a small picture with the projector where the library for pictures is installed. Without rows it loads the files
// alone. Exits with 3 and a reason on stderr where the files are none of the library's, or rendering the chat template
// does not end. Ends when standard input closes.
import { readFileSync } from 'node:fs'
import { setPriority } from 'node:os'
import { parseArgs } from 'node:util'
import { dieWithParent } from '../lib/child-process.ts'
import { EndlessTemplate } from './chat/render-bounds.ts'
import { readTemplate } from './chat/template.ts'
import { createComputeThreads } from './llama/compute-threads.ts'
import { createContext } from './llama/context.ts'
import { type Library, openLibrary, withLogs } from './llama/library.ts'
import { loadAdapter, loadModel, type Model } from './llama/model.ts'
import type { Pointer } from './llama/structs.ts'
import { logSumExp } from './sampling/logprobs.ts'
import { createEncoder } from './vision/encoder.ts'
import { createProjectors } from './vision/projectors.ts'

const refusedStatus = 3
const smallPicture = { width: 32, height: 32, rgb: new Uint8Array(32 * 32 * 3).fill(128) }

async function main(args: string[]): Promise<void> {
  const options = { adapter: { type: 'string' }, projector: { type: 'string' } } as const
  const { values, positionals } = parseArgs({ args, options, allowPositionals: true })
  const [path, lib, rowsFile] = positionals
  // With SIGKILL: an exit would wait for the library's threads.
  dieWithParent()
  if (!path || !lib || !rowsFile) throw new Error('score.ts MODEL.gguf LIBRARY_FOLDER ROWS.json')
  // Answers have priority.
  setPriority(10)
  const rows = JSON.parse(readFileSync(rowsFile, 'utf8')) as number[][]
  const library = openLibrary(lib)
  const model = await loadModel(library, path).catch(() => {
    throw new Error(reasonNotToLoad(library, path))
  })
  if (!values.adapter) requireUsableTemplate(model)
  if (values.projector) await requireProjector(library, model, values.projector)
  const base = score(library, model, rows, null)
  const adapter = values.adapter ? score(library, model, rows, loadAdapter(library, model, values.adapter)) : null
  process.stdout.write(JSON.stringify({ base, adapter }))
}

/** Throws if rendering holds up the engine. A template that it cannot read is no obstacle: prompts need none. */
function requireUsableTemplate(model: Model): void {
  try {
    if (model.chat_template !== null) readTemplate(model).thinking()
  } catch (error) {
    if (error instanceof EndlessTemplate) throw new Error(`its chat template cannot be used, as ${error.why}`)
  }
}

/** Throws an Error for the user if the model cannot read pictures with this file. The library may end the process. */
async function requireProjector(library: Library, model: Model, path: string): Promise<void> {
  const encoder = createEncoder(library.dir)
  const projectors = createProjectors(library, encoder, 1, 0)
  if (!projectors.isInstalled()) return
  const { id } = await projectors.load(model, path)
  const parts = await encoder.call({ kind: 'prepare', projector: id, picture: 1, pixels: smallPicture })
  for (const [index, part] of parts.entries()) {
    if (part.kind === 'text') continue
    const vectors = await encoder.call({ kind: 'encode', picture: 1, part: index })
    if (!vectors.every(Number.isFinite)) throw new Error('it turns a small picture into numbers that are not finite')
  }
}

/** What the library says of a file that it does not load. */
function reasonNotToLoad(library: Library, path: string): string {
  const { logged } = withLogs(library, () =>
    library.llama_model_load_from_file(path, library.llama_model_default_params()),
  )
  const [said = ''] = logged.split('llama_model_load_from_file_impl: ').map((part) => part.trimEnd())
  const reason = /error loading model: (.*)/.exec(said)?.[1] ?? said.split('\n').at(-1)
  if (reason?.startsWith('llama_model_loader: failed to load model')) return 'its header cannot be read'
  return reason || 'it names no reason'
}

/** The natural log-probability of each token but the first of a row. */
function score(library: Library, model: Model, rows: readonly number[][], adapter: Pointer): number[][] {
  if (rows.length === 0) return []
  const length = Math.max(...rows.map((tokens) => tokens.length))
  const context = createContext(library, model, {
    sequences: 1,
    tokens_per_sequence: length,
    batch_tokens: length,
    threads: createComputeThreads(library, 1),
    adapter,
    outputs: length,
  })
  try {
    return rows.map((tokens) => {
      context.truncate(0, 0)
      tokens.forEach((token, at) => {
        context.add(token, at, 0, true)
      })
      if (context.decode() !== 0) throw new Error('The library could not compute the rows.')
      return tokens.slice(1).map((token, at) => {
        const logits = context.logits(at, model.vocab.size)
        return logits[token]! - logSumExp(logits)
      })
    })
  } finally {
    context.free()
  }
}

main(process.argv.slice(2)).then(
  () => process.exit(0),
  (error: Error) => {
    console.error(error.message)
    process.exit(refusedStatus)
  },
)
