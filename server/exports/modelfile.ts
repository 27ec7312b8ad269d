import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { z } from 'zod'
import type { TakenModel } from '../fine-tuning/models/export-source.ts'
import { ollamaTemplate } from './ollama-template.ts'
import type { ExportRow } from './store.ts'

const Token = z.union([z.string(), z.object({ content: z.string() }).transform(({ content }) => content)]).nullish()
const TokenizerConfig = z.looseObject({
  chat_template: z.unknown().optional(),
  bos_token: Token,
  eos_token: Token,
  add_bos_token: z.boolean().nullish(),
})

/** More would take much memory on the machines that Ollama runs on; whoever needs it changes the line. */
const contextMax = 8192

/**
 * What `ollama create NAME -f Modelfile` reads beside the GGUF. Ollama matches a file's template with those it knows,
 * by how alike the two look, and versions of before the summer of 2026 know no other way: so the template stands here
 * where it can be said in Ollama's language.
 */
export async function modelfile(gguf: string, row: ExportRow, model: TakenModel): Promise<string> {
  const { base } = model
  const from =
    row.merge === 1
      ? [`FROM ./${gguf}`]
      : [
          `# Put the GGUF of ${base.id}, which the adapter stands on, beside this file.`,
          'FROM ./base.gguf',
          `ADAPTER ./${gguf}`,
        ]
  const { jinja, bos_token, eos_token } = await textOf(model.folder, base.path)
  const template = jinja && ollamaTemplate(jinja, { bos_token, eos_token })
  const said = template ? [`TEMPLATE """${template}"""`] : ['# The chat template is the one inside of the GGUF.']
  const stop = /^[^"\\\p{C}]+$/u.test(eos_token) ? [`PARAMETER stop "${eos_token}"`] : []
  return [...from, ...said, ...stop, `PARAMETER num_ctx ${Math.min(base.context_length, contextMax)}`, ''].join('\n')
}

/** The template and the tokens that it writes, of the model's own folder or of what it stands on. */
async function textOf(...folders: string[]) {
  const read = async (name: string) => {
    for (const folder of folders) {
      const text = await readFile(path.join(folder, name), 'utf8').catch(() => undefined)
      if (text !== undefined) return text
    }
  }
  const config = TokenizerConfig.parse(JSON.parse((await read('tokenizer_config.json')) ?? '{}'))
  const jinja =
    (await read('chat_template.jinja')) ?? (typeof config.chat_template === 'string' ? config.chat_template : undefined)
  // Where the runtime puts the token at the beginning itself, the template must not write it a second time.
  return {
    jinja,
    bos_token: config.add_bos_token === true ? '' : (config.bos_token ?? ''),
    eos_token: config.eos_token ?? '',
  }
}
