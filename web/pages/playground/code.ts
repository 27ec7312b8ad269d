// The question as a program sends it.
import type { ChatRequest } from '../../../sdk/index.ts'
import { picturesOf } from '../../lib/pictures.ts'
import { pythonValue } from '../../lib/python.ts'

/** How much of a picture's data is shown: all of it would be megabytes of text. */
const shownData = 24

export const hasPictures = ({ messages }: ChatRequest): boolean =>
  messages.some(({ content }) => picturesOf(content).length > 0)

const cut = (request: ChatRequest): ChatRequest =>
  JSON.parse(
    JSON.stringify(request, (key, value) =>
      key === 'url' && typeof value === 'string' && value.startsWith('data:')
        ? `${value.slice(0, value.indexOf(',') + shownData)}…`
        : value,
    ),
  )

export function samplesOf(whole: ChatRequest): { name: string; code: string }[] {
  const request = cut(whole)
  const body = JSON.stringify(request, null, 2)
  const { origin } = location
  return [
    {
      name: 'curl',
      code: `curl ${origin}/v1/chat/completions \\
  -H "Authorization: Bearer $TUNERY_KEY" \\
  -H 'Content-Type: application/json' \\
  -d @- <<'JSON'
${body}
JSON`,
    },
    {
      name: 'TypeScript',
      code: `import OpenAI from 'openai'

const openai = new OpenAI({ baseURL: '${origin}/v1', apiKey: process.env.TUNERY_KEY })
const answer = await openai.chat.completions.create(${body})
console.log(answer.choices[0].message.content)`,
    },
    {
      name: 'Python',
      code: `import os
from openai import OpenAI

client = OpenAI(base_url="${origin}/v1", api_key=os.environ["TUNERY_KEY"])
answer = client.chat.completions.create(**${pythonValue(request)})
print(answer.choices[0].message.content)`,
    },
  ]
}
