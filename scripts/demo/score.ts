import { readFileSync } from 'node:fs'
import { isDeepStrictEqual } from 'node:util'
import { call, type Service } from './service.ts'

export interface Row {
  prompt: { role: string; content: string }[]
  expected: string
}

/** Reads a messages file: each row's prompt, and its last message as the expected answer. */
export function readRows(file: string): Row[] {
  const lines = readFileSync(file, 'utf8').trim().split('\n')
  return lines.map((line) => {
    const { messages } = JSON.parse(line) as { messages: Row['prompt'] }
    return { prompt: messages.slice(0, -1), expected: messages.at(-1)!.content }
  })
}

export interface Score {
  /** Share of rows whose JSON object is exactly right. */
  share: number
  answers: string[]
}

/** Answers every row with a model, greedily and 16 at a time, as the engine batches them. */
export async function score(
  service: Service,
  model: string,
  rows: Row[],
  done: (count: number) => void,
): Promise<Score> {
  const answers: string[] = new Array(rows.length)
  let next = 0
  let finished = 0
  const worker = async () => {
    for (let index = next++; index < rows.length; index = next++) {
      const { prompt } = rows[index]!
      const answer = await call<{ choices: { message: { content: string } }[] }>(service, 'POST', '/chat/completions', {
        model,
        messages: prompt,
        temperature: 0,
        max_tokens: 80,
      })
      answers[index] = answer.choices[0]!.message.content
      done(++finished)
    }
  }
  await Promise.all(Array.from({ length: 16 }, worker))
  const right = rows.filter((row, index) => isRight(answers[index]!, row.expected)).length
  return { share: right / rows.length, answers }
}

export function isRight(answer: string, expected: string): boolean {
  try {
    return isDeepStrictEqual(JSON.parse(answer), JSON.parse(expected))
  } catch {
    return false
  }
}
