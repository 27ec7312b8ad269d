// `node tests/families/template.ts MODEL.gguf`: what the engine learns from a model's chat template, as JSON: cells of
// the table of families.
import path from 'node:path'
import { readTemplate } from '../../engine/chat/template.ts'
import { openLibrary } from '../../engine/llama/library.ts'
import { loadModel } from '../../engine/llama/model.ts'
import { root } from '../../lib/root.ts'

const model = await loadModel(openLibrary(path.join(root, '.local/llama/lib')), process.argv[2]!)
const { tool_format, thoughts } = readTemplate(model)
const cells = {
  tools:
    tool_format.name === 'prompted'
      ? 'Its template has no calls of tools: they are asked for in the prompt, as JSON.'
      : `yes (${tool_format.name === 'learned' ? 'learned from the template' : tool_format.name})`,
  thoughts: thoughts.thoughts ? `yes (${thoughts.thoughts.open.trim()})` : 'none',
}
process.stdout.write(JSON.stringify(cells))
process.exit(0)
