// The models that Ollama has stored on this machine.
import { createHash } from 'node:crypto'
import { createReadStream, existsSync, readFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { z } from 'zod'
import { UsageError } from '../support/errors.ts'

const Manifest = z.object({ layers: z.array(z.object({ mediaType: z.string(), digest: z.string() })) })
const modelType = 'application/vnd.ollama.image.model'

/** `qwen3:4b`, `OWNER/NAME`, or with the host of another registry in front; the tag is `latest` where none is given. */
const manifestPath = (name: string) => {
  const [, parts, tag = 'latest'] = /^([\w./-]+?)(?::([\w.-]+))?$/.exec(name) ?? []
  const words = parts?.split('/') ?? []
  if (words.length === 0 || words.length > 3 || words.some((word) => /^\.*$/.test(word)) || /^\.*$/.test(tag))
    throw new UsageError(`'${name}' is not a name of an Ollama model, such as qwen3:4b.`)
  const defaults = ['registry.ollama.ai', 'library'].slice(0, 3 - words.length)
  return [...defaults, ...words, tag]
}

/** Those of a manifest; none of a file that is no manifest. */
function layersOf(file: string) {
  try {
    return Manifest.parse(JSON.parse(readFileSync(file, 'utf8'))).layers
  } catch {
    return []
  }
}

/** The GGUF file of a model in Ollama's store, whose hash is checked. Throws a UsageError that says what to do. */
export async function ollamaFile(name: string, env: NodeJS.ProcessEnv = process.env): Promise<string> {
  const store = env.OLLAMA_MODELS || path.join(os.homedir(), '.ollama/models')
  const file = path.join(store, 'manifests', ...manifestPath(name))
  if (!existsSync(file))
    throw new UsageError(
      `Ollama has no model '${name}' in ${store}. 'ollama list' names those it has; OLLAMA_MODELS is another folder.`,
    )
  const digest = layersOf(file).find(({ mediaType }) => mediaType === modelType)?.digest
  const sha256 = /^sha256:([0-9a-f]{64})$/.exec(digest ?? '')?.[1]
  if (!sha256) throw new UsageError(`${file} names no weights: 'ollama pull ${name}' downloads them again.`)
  const blob = path.join(store, 'blobs', `sha256-${sha256}`)
  if (!existsSync(blob)) throw new UsageError(`${blob} is missing: 'ollama pull ${name}' downloads it again.`)
  const hash = createHash('sha256')
  for await (const chunk of createReadStream(blob, { highWaterMark: 1 << 20 })) hash.update(chunk as Buffer)
  if (hash.digest('hex') !== sha256)
    throw new UsageError(
      `${blob} is damaged: its hash differs from its name. 'ollama pull ${name}' downloads it again.`,
    )
  return blob
}
