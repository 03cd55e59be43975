// The texts of what is only there when the page is served.

Object.assign(STRINGS.en, {
  live: "Try it", mapsOf: "maps of", liveText: "Text", liveHint: "What you type goes to the server that gave you this page, and nowhere else.",
  off: "Switched off", offNone: "none: choose a head in the grid and switch it off, or press O on it",
  switchOff: "switch off", switchOn: "switch on", allOn: "all on", how: "output set to", offHead: "switched off",
  working: "computing …", ready: "{0} of at most {1} tokens",
  untouched: "untouched", silent: "with heads off", without: "{0} without {1}",
  nextAfter: "What comes after {0}", inPlaceOf: "What stands in place of {0}", noCandidates: "Nothing is predicted here.",
  lossTitle: "Loss of each token, and its mean (nats)", turnTitle: "How far each output turns", turnMean: "mean of 1 − cosine",
  change: "change", lossNone: "A text of one token has no loss.", turnNone: "This model predicts nothing; switch a head off to see how far its output turns.",
  lossHint: "darker: less expected, up to {0}", changeHint: "orange: worse without the heads, blue: better, up to {0}", notPredicted: "not predicted",
  writes: "What it writes", write: "write", stop: "stop", newTokens: "tokens", temperature: "temperature", seed: "seed",
  cannotWrite: "This model fills in tokens; it does not write on.", writing: "writing …", written: "done", stopped: "stopped",
  lost: "The server does not answer.", footerLive: "Made with headwise {0}. It asks nothing of any other server.",
});
Object.assign(STRINGS.ko, {
  live: "직접 해 보기", mapsOf: "지도의 모델", liveText: "글", liveHint: "입력한 글은 이 쪽을 보낸 서버로만 갑니다.",
  off: "끈 헤드", offNone: "없음: 격자에서 헤드를 골라 끄거나, 헤드에서 O 키를 누르세요",
  switchOff: "끄기", switchOn: "켜기", allOn: "모두 켜기", how: "출력을 바꿀 값", offHead: "꺼짐",
  working: "계산하는 중 …", ready: "토큰 {0}개 (최대 {1}개)",
  untouched: "원래 모델", silent: "헤드를 끈 모델", without: "{0}, {1} 끔",
  nextAfter: "{0} 다음에 올 토큰", inPlaceOf: "{0} 자리에 올 토큰", noCandidates: "여기서는 예측하지 않습니다.",
  lossTitle: "토큰마다의 손실과 그 평균 (나트)", turnTitle: "출력이 돌아간 정도", turnMean: "1 − 코사인의 평균",
  change: "차이", lossNone: "토큰이 하나인 글에는 손실이 없습니다.", turnNone: "예측하지 않는 모델입니다. 헤드를 끄면 출력이 얼마나 돌아가는지 보입니다.",
  lossHint: "짙을수록 뜻밖의 토큰, {0}까지", changeHint: "주황: 헤드가 없으면 나빠짐, 파랑: 나아짐, {0}까지", notPredicted: "예측하지 않음",
  writes: "모델이 쓰는 글", write: "쓰기", stop: "멈추기", newTokens: "토큰 수", temperature: "온도", seed: "시드",
  cannotWrite: "빈칸을 채우는 모델이라 이어 쓰지 않습니다.", writing: "쓰는 중 …", written: "끝", stopped: "멈춤",
  lost: "서버가 답하지 않습니다.", footerLive: "headwise {0}이(가) 만든 쪽입니다. 다른 서버에는 아무것도 묻지 않습니다.",
});
