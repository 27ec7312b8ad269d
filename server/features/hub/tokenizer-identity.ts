import { createHash } from 'node:crypto'
import { existsSync, readFileSync, statSync } from 'node:fs'
import path from 'node:path'

/** The tokenizer and chat template of a base, stored in a job. trainer/data/tokenizer_identity.py computes the same. */
interface TokenizerIdentity {
  /** SHA-256 of tokenizer.json. */
  sha256: string | null
  chat_template_sha256: string
  eos_token: string | null
}

const sha256 = (content: string | Buffer) => createHash('sha256').update(content).digest('hex')

/** The chat template of a base in its folder, and the settings of its tokenizer. */
function templateOf(hf: string): { config: Record<string, unknown>; template: unknown } {
  const file = (name: string) => path.join(hf, name)
  const config = existsSync(file('tokenizer_config.json'))
    ? JSON.parse(readFileSync(file('tokenizer_config.json'), 'utf8'))
    : {}
  const template = existsSync(file('chat_template.jinja'))
    ? readFileSync(file('chat_template.jinja'), 'utf8').replace(/\r\n?/g, '\n')
    : config.chat_template
  return { config, template }
}

/** Whether the chat template of a base writes tools; as trainer/data/tools.py decides it. True if there is none. */
export function writesTools(hf: string): boolean {
  const { template } = templateOf(hf)
  return typeof template !== 'string' || /\btools\b/.test(template)
}

const templateHashes = new Map<string, { changed: string; sha256: string | undefined }>()

/** SHA-256 of the chat template in a base's folder; read again only when its file changes. */
export function chatTemplateHash(hf: string): string | undefined {
  const changed = ['chat_template.jinja', 'tokenizer_config.json']
    .map((name) => statSync(path.join(hf, name), { throwIfNoEntry: false })?.mtimeMs)
    .join()
  const read = templateHashes.get(hf)
  if (read?.changed === changed) return read.sha256
  const { template } = templateOf(hf)
  const hash = typeof template === 'string' ? sha256(template) : undefined
  templateHashes.set(hf, { changed, sha256: hash })
  return hash
}

/** Undefined if the folder has no chat template, which the trainer then reports. */
export function tokenizerIdentity(hf: string): TokenizerIdentity | undefined {
  const file = (name: string) => path.join(hf, name)
  const { config, template } = templateOf(hf)
  if (typeof template !== 'string') return undefined
  const eos = config.eos_token as string | { content: string } | null | undefined
  return {
    sha256: existsSync(file('tokenizer.json')) ? sha256(readFileSync(file('tokenizer.json'))) : null,
    chat_template_sha256: sha256(template),
    eos_token: (typeof eos === 'object' ? eos?.content : eos) ?? null,
  }
}
