import { accountTools } from './account.ts'
import { datasetTools } from './datasets.ts'
import { evaluationTools } from './evaluations.ts'
import { servingTools } from './serving.ts'
import type { Tool } from './tool.ts'
import { trainingTools } from './training.ts'

/** All tools, in the order in which a newcomer needs them. */
export const tools: Tool[] = [...accountTools, ...datasetTools, ...trainingTools, ...evaluationTools, ...servingTools]
