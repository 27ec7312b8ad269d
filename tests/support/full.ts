/** Options of a test that takes long and runs in `npm run test:full` alone, or where its file is named. */
export const full = { skip: process.env.TEST_FULL ? false : 'npm run test:full' }
