import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { z } from 'zod'
import type { ExportSource } from '../models/index.ts'
import { ollamaTemplate } from './ollama-template.ts'
import type { ExportRow } from './store.ts'

const Token = z.union([z.string(), z.object({ content: z.string() }).transform(({ content }) => content)]).nullish()
const TokenizerConfig = z.looseObject({
  chat_template: z.unknown().optional(),
  bos_token: Token,
  eos_token: Token,
  add_bos_token: z.boolean().nullish(),
})

/** A longer context takes much memory on typical Ollama machines. Users can change the line. */
const contextLengthMax = 8192

/**
 * The Modelfile for `ollama create NAME -f Modelfile`. Ollama versions before mid-2026 only match the GGUF's template
 * with known ones by similarity, so the Modelfile has the template if it can be expressed in Go's template language.
 */
export async function modelfile(
  { gguf, projector }: { gguf: string; projector: string | undefined },
  row: ExportRow,
  model: ExportSource,
): Promise<string> {
  const { base } = model
  const sight = projector ? [`FROM ./${projector}`] : []
  const from =
    row.merge === 1
      ? [`FROM ./${gguf}`, ...sight]
      : [
          `# Put the GGUF of ${base.id}, the base model of the adapter, into this folder.`,
          'FROM ./base.gguf',
          ...sight,
          `ADAPTER ./${gguf}`,
        ]
  const { jinja, bos_token, eos_token } = await readTemplate(model.folder, base.path)
  const template = jinja && ollamaTemplate(jinja, { bos_token, eos_token })
  const templateLine = template
    ? [`TEMPLATE """${template}"""`]
    : ['# The chat template is the one inside of the GGUF.']
  const stop = /^[^"\\\p{C}]+$/u.test(eos_token) ? [`PARAMETER stop "${eos_token}"`] : []
  return [
    ...from,
    ...templateLine,
    ...stop,
    `PARAMETER num_ctx ${Math.min(base.context_length, contextLengthMax)}`,
    '',
  ].join('\n')
}

/** The chat template and its special tokens, from the first folder that has each file. */
async function readTemplate(...folders: string[]) {
  const read = async (name: string) => {
    for (const folder of folders) {
      const text = await readFile(path.join(folder, name), 'utf8').catch(() => undefined)
      if (text !== undefined) return text
    }
    return undefined
  }
  const config = TokenizerConfig.parse(JSON.parse((await read('tokenizer_config.json')) ?? '{}'))
  const jinja =
    (await read('chat_template.jinja')) ?? (typeof config.chat_template === 'string' ? config.chat_template : undefined)
  // If the runtime adds the BOS token itself, the template must not repeat it.
  return {
    jinja,
    bos_token: config.add_bos_token === true ? '' : (config.bos_token ?? ''),
    eos_token: config.eos_token ?? '',
  }
}
