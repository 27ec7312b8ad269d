import { parentPort } from 'node:worker_threads'
import { gradeLocally, type LocalGrader } from './local.ts'
import { GraderError, type Values } from './template.ts'

parentPort!.on('message', ({ grader, values }: { grader: LocalGrader; values: Values }) => {
  try {
    parentPort!.postMessage({ score: gradeLocally(grader, values) })
  } catch (error) {
    parentPort!.postMessage({ error: (error as Error).message, expected: error instanceof GraderError })
  }
})
