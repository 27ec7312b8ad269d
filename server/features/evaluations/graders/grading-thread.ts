import { parentPort } from 'node:worker_threads'
import { threadId } from '../../../../lib/thread-time.ts'
import { type Compilable, compile, gradeLocally, type LocalGrader } from './local.ts'
import { GraderError, GraderFailure, type Values } from './template.ts'

export type GradingRequest = { grader: LocalGrader; values: Values } | { compilable: Compilable }

parentPort!.on('message', (request: GradingRequest) => {
  try {
    if ('compilable' in request) parentPort!.postMessage({ score: compile(request.compilable) })
    else parentPort!.postMessage({ score: gradeLocally(request.grader, request.values) })
  } catch (error) {
    parentPort!.postMessage({
      error: (error as Error).message,
      expected: error instanceof GraderError,
      ...(error instanceof GraderFailure && { kind: error.kind }),
    })
  }
})
parentPort!.postMessage(threadId())
